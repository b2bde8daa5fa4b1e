"""Log a run to ClearML. CLEARML_OFFLINE_MODE=1 keeps it on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from clearml import Task
from clearml.config import config_obj
from ignite.handlers import ClearMLLogger

PROJECT = "{{ cookiecutter.project_slug }}"


class Tracker:
    """Called by tracking.py."""

    def __init__(self, run_dir: Path, settings: dict[str, Any], step: int, run_id: str, resumes: bool) -> None:
        # By default a forked process reports, which hangs if another thread holds a lock at the fork.
        config_obj.set_overrides({"sdk": {"development": {"report_use_subprocess": False}}})
        self.logger = ClearMLLogger(
            project_name=PROJECT,
            task_name=run_dir.name,
            # ClearML resumes only tasks of its server; offline, each start is a new task.
            continue_last_task=run_id if resumes and not Task.is_offline() else False,
            reuse_last_task_id=False,
            # Otherwise it would log some values twice.
            auto_connect_frameworks=False,
            auto_connect_arg_parser=False,
        )
        self.task = self.logger.get_task()
        self.run_id = self.task.id
        # Otherwise it adds its last step to the steps of a resumed run.
        self.task.set_initial_iteration(0)
        self.task.set_parameters_as_dict({"settings": settings})
        self.step = step

    def log(self, numbers: dict[str, float], step: int) -> None:
        """Log numbers at a step."""
        for name, value in numbers.items():
            group, series = name.split("/", 1)
            self.logger.report_scalar(title=series, series=group, value=value, iteration=step)
        self.step = step

    def finish(self, picture: Path, checkpoint: Path | None) -> None:
        """Upload the curves and the best checkpoint."""
        self.logger.report_image(title="curves", series="all", local_path=str(picture), iteration=self.step)
        if checkpoint:
            self.task.upload_artifact("best checkpoint", checkpoint, wait_on_upload=True)

    def close(self) -> None:
        """Send what is left."""
        self.logger.close()
