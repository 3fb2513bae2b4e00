"""Classes that Spark sends to Python processes on other machines, or of another interpreter.

They are pickled by their names, so such a process must find this package. ``class_of`` travels with
its code instead: it says what to do where the package is missing, and finds it where Spark looks
for it in the wrong folder. This module has nothing else that could be pickled.
"""

import copyreg
import sys
from abc import ABCMeta
from typing import Any

from pyspark import cloudpickle


def class_of(module: str, name: str) -> object:
    """Return a class in a process of Spark. Raises: ImportError with cause and fix."""
    import importlib  # the function travels without its module
    import pathlib  # as above
    import platform  # as above
    import sys  # as above

    # Spark tells the process that plans a stream (seen with 4.3) that shipped files are in
    # ``streaming_job`` of its folder. They are beside it, or in the folder of a session.
    wrong = "/streaming_job/"
    for entry in [entry for entry in sys.path if wrong in entry]:
        folder, _, file = entry.partition(wrong)
        for found in pathlib.Path(folder).rglob(file):
            if str(found) not in sys.path:
                sys.path.append(str(found))
    try:
        return getattr(importlib.import_module(module), name)
    except ImportError as error:
        raise ImportError(
            f"{error}: a Python process of Spark, {sys.executable} on {platform.node()}, has no"
            " triomq, or not what it needs. Give it the package: spark-submit --py-files"
            " triomq-spark.zip, spark.sparkContext.addPyFile or spark.addArtifacts (pyarrow and"
            " numpy must be installed); or set PYSPARK_PYTHON to an interpreter that has triomq on"
            " every machine. PYSPARK_DRIVER_PYTHON changes only the driver's interpreter"
        ) from error


class Shipped(ABCMeta):
    """The type of classes that are found, or whose absence is explained."""


def _reduced(cls: type) -> tuple[Any, tuple[str, str]]:
    return class_of, (cls.__module__, cls.__qualname__)


copyreg.pickle(Shipped, _reduced)
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
