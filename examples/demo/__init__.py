"""The main use of TrioMQ on real data: every flight that left New York in 2013.

Two name servers and two brokers run as processes; the SDK sends 336,776 messages; a group of two
push consumers and a Spark Structured Streaming query read them; both results are compared with what
pandas computes from the file itself.

    python -m examples.demo            # or: make demo
"""
