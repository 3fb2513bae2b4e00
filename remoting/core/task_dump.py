"""A dump of all tasks below a task, and of what each waits for."""

from collections.abc import Iterator

import trio

_CALLS_MAX = 6


def format_tasks(root: trio.lowlevel.Task) -> str:
    """Return the lines of ``task_lines`` as one text."""
    return "\n".join(task_lines(root))


def task_lines(task: trio.lowlevel.Task, depth: int = 0) -> Iterator[str]:
    """Yield one line per task: its name, indented by its depth, and its innermost calls."""
    calls = [
        f"{frame.f_code.co_filename.rsplit('/', 1)[-1]}:{line} in {frame.f_code.co_name}"
        for frame, line in task.iter_await_frames()
        if "/trio/" not in frame.f_code.co_filename
    ]
    where = " <- ".join(reversed(calls[-_CALLS_MAX:])) or "running"
    yield f"{'  ' * depth}{task.name:<{max(1, 32 - 2 * depth)}} {where}"
    children = [child for nursery in task.child_nurseries for child in nursery.child_tasks]
    for child in sorted(children, key=lambda task: task.name):
        yield from task_lines(child, depth + 1)
