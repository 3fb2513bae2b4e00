"""Which tasks are there, and what does each wait for? A dump that reads like a stack trace per stage."""

import trio


def task_tree(root: trio.lowlevel.Task) -> list[tuple[int, trio.lowlevel.Task]]:
    """(depth, task) of a task and all its descendants, parents first, children in order of their names."""
    found = [(0, root)]
    children = [child for nursery in root.child_nurseries for child in nursery.child_tasks]
    for child in sorted(children, key=lambda task: task.name):
        found += [(depth + 1, task) for depth, task in task_tree(child)]
    return found


def waiting_at(task: trio.lowlevel.Task) -> str:
    """`file:line in function` of the innermost frame outside Trio, for a task that waits."""
    place = "running"
    for frame, line in task.iter_await_frames():
        if "/trio/" in frame.f_code.co_filename:
            continue
        name = frame.f_code.co_filename.rsplit("/", 1)[-1]
        place = f"{name}:{line} in {frame.f_code.co_name}"
    return place


def format_tasks(root: trio.lowlevel.Task) -> str:
    """One line per task: its name, indented by its depth, and where it waits."""
    return "\n".join(
        f"{'  ' * depth}{task.name:<{max(1, 32 - 2 * depth)}} {waiting_at(task)}" for depth, task in task_tree(root)
    )
