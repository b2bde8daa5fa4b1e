"""What MLflow is told of a run: the server of MLFLOW_TRACKING_URI, or a database beside the run directories."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

# A server that refuses to connect is asked twice more, within seconds, and not seven times.
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")

import mlflow
from ignite.handlers import MLflowLogger
from mlflow.exceptions import MlflowException

EXPERIMENT = "{{ cookiecutter.project_slug }}"


class Tracker:
    """What tracking.py calls, on rank 0 alone."""

    def __init__(self, run_dir: Path, settings: dict[str, Any], step: int, run_id: str, resumes: bool) -> None:
        location = None
        if "MLFLOW_TRACKING_URI" not in os.environ:
            folder = run_dir.parent.resolve()
            mlflow.set_tracking_uri(f"sqlite:///{folder / 'mlflow.db'}")
            location = (folder / "mlflow").as_uri()
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", EXPERIMENT)
        experiment = mlflow.get_experiment_by_name(name)
        try:
            of = experiment.experiment_id if experiment else mlflow.create_experiment(name, location)
        except MlflowException:
            # Another run, which began together with this one, may have made it.
            experiment = mlflow.get_experiment_by_name(name)
            if not experiment:
                raise
            of = experiment.experiment_id
        run = mlflow.start_run(run_id if resumes else None, experiment_id=of, run_name=run_dir.name)
        self.run_id = run.info.run_id
        self.finished = False
        self.logger = MLflowLogger()
        if not resumes:
            # MLflow never changes them: those of a resumed run are in its config.yaml alone.
            self.logger.log_params(settings)
        self.logger.log_dict(settings, "config.yaml")

    def log(self, numbers: dict[str, float], step: int) -> None:
        """Show numbers at a step."""
        self.logger.log_metrics(numbers, step)

    def finish(self, picture: Path, checkpoint: Path | None) -> None:
        """Keep the curves and the best checkpoint."""
        for file in (picture, checkpoint):
            if file:
                self.logger.log_artifact(str(file))
        self.finished = True

    def close(self) -> None:
        """Send what is left; what has not finished was stopped, or failed, and may be resumed."""
        mlflow.end_run("FINISHED" if self.finished else "KILLED")
