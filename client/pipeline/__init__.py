"""The pipeline: one file that becomes Spark queries from topics to tables.

``spec`` says what a pipeline can be; ``spec_file`` reads one; ``spec_check`` finds mistakes before
anything runs; ``decoders``, ``rules`` and ``joins`` turn bodies into rows; ``tables`` keep them;
``batch`` and ``run`` put it together. The design is ``docs/architecture/pipeline.md``.
"""
