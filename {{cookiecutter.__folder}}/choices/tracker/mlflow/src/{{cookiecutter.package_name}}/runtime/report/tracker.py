"""Log a run to MLflow: to the server of MLFLOW_TRACKING_URI, or to a database beside the run directories."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

# By default, seven tries take minutes.
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")

import mlflow
from ignite.handlers import MLflowLogger
from mlflow.exceptions import MlflowException

EXPERIMENT = "{{ cookiecutter.project_slug }}"


class Tracker:
    """Called by tracking.py."""

    def __init__(self, run_dir: Path, settings: dict[str, Any], step: int, run_id: str, resumes: bool) -> None:
        location = None
        if "MLFLOW_TRACKING_URI" not in os.environ:
            folder = run_dir.parent.resolve()
            mlflow.set_tracking_uri(f"sqlite:///{folder / 'mlflow.db'}")
            location = (folder / "mlflow").as_uri()
        experiment = experiment_id(os.environ.get("MLFLOW_EXPERIMENT_NAME", EXPERIMENT), location)
        run = mlflow.start_run(run_id if resumes else None, experiment_id=experiment, run_name=run_dir.name)
        self.run_id = run.info.run_id
        self.finished = False
        self.logger = MLflowLogger()
        if not resumes:
            # MLflow cannot change them later: config.yaml has those of a resumed run.
            self.logger.log_params(settings)
        self.logger.log_dict(settings, "config.yaml")

    def log(self, numbers: dict[str, float], step: int) -> None:
        """Log numbers at a step."""
        self.logger.log_metrics(numbers, step)

    def finish(self, picture: Path, checkpoint: Path | None) -> None:
        """Upload the curves and the best checkpoint."""
        for file in (picture, checkpoint):
            if file:
                self.logger.log_artifact(str(file))
        self.finished = True

    def close(self) -> None:
        """Send what is left. A run that stopped or failed is marked KILLED; it may be resumed."""
        mlflow.end_run("FINISHED" if self.finished else "KILLED")


def experiment_id(name: str, location: str | None) -> str:
    """Return the id of an experiment, created if it does not exist."""
    if found := mlflow.get_experiment_by_name(name):
        return str(found.experiment_id)
    try:
        return str(mlflow.create_experiment(name, location))
    except MlflowException:
        # Another run may have created it at the same time.
        if found := mlflow.get_experiment_by_name(name):
            return str(found.experiment_id)
        raise
