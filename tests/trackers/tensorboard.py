import json
import sys

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

events = EventAccumulator(f"{sys.argv[1]}/tensorboard", size_guidance={"scalars": 0, "tensors": 0})
events.Reload()
tags = events.Tags()
points = {tag: [[event.step, event.value] for event in events.Scalars(tag)] for tag in tags["scalars"]}
(text,) = events.Tensors("settings/text_summary")[-1].tensor_proto.string_val
rows = [line.strip("| ").split(" | ") for line in text.decode().splitlines()[2:]]
print(
    json.dumps(
        [{"points": points, "settings": dict(rows), "picture": "curves" in tags["images"], "files": []}]
    )
)
