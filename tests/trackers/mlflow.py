import json

from mlflow import MlflowClient

client, found = MlflowClient(), []
for experiment in client.search_experiments():
    for run in client.search_runs([experiment.experiment_id]):
        of_run = run.info.run_id
        points = {
            name: sorted([metric.step, metric.value] for metric in client.get_metric_history(of_run, name))
            for name in run.data.metrics
        }
        files = [file.path for file in client.list_artifacts(of_run)]
        found.append(
            {
                "points": points,
                "settings": run.data.params,
                "picture": "curves.png" in files,
                "files": files,
                "end": run.info.status,
            }
        )
print(json.dumps(found))
