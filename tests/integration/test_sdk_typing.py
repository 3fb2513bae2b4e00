"""The SDK as a type checker sees it: the examples are clean under `mypy --strict`, and a wrong argument is found."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent

USE = """
from triomq import ConsumeContext, ConsumerSettings, Producer, ProducerSettings, SendContext, SendReceipt

class Meter:
    def before_send(self, context: SendContext) -> None: ...
    def after_send(self, context: SendContext) -> None: ...

ProducerSettings(compression="zstd", send_hooks=[Meter()], retry_codes={1, 2}, latency_max=[1.0], not_available=(2.0,))

async def send(producer: Producer) -> SendReceipt:
    return await producer.send("T", b"x", keys=["k"])
"""
WRONG = USE + """
async def wrong(producer: Producer) -> None:
    await producer.send("T", "text")
ConsumerSettings(consume_hooks=[Meter()])
"""


def mypy(*arguments: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "mypy", "--strict", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=110, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
def test_examples_and_uses_are_strictly_typed(tmp_path: Path) -> None:
    good, wrong = tmp_path / "good.py", tmp_path / "wrong.py"
    good.write_text(USE)
    wrong.write_text(WRONG)
    examples = [str(path) for path in sorted((ROOT / "examples").glob("*.py"))]
    assert mypy(*examples, str(good)) == (0, f"Success: no issues found in {len(examples) + 1} source files\n")
    code, told = mypy(str(wrong))
    assert code == 1
    assert 'No overload variant of "send"' in told
    assert 'incompatible type "Meter"; expected "ConsumeHook"' in told
