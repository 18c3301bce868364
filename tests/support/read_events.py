"""Reads a folder of event files with TensorBoard's own reader, prints what it would show as JSON."""
import json
import math
import sys

from tensorboard.backend.event_processing import event_accumulator

everything = {event_accumulator.SCALARS: 0, event_accumulator.TENSORS: 0}
reader = event_accumulator.EventAccumulator(sys.argv[1], size_guidance=everything)
reader.Reload()
curves = {tag: [[e.step, e.value if math.isfinite(e.value) else str(e.value)] for e in reader.Scalars(tag)]
          for tag in reader.Tags()["scalars"]}
texts = {}
for tag in reader.Tags()["tensors"]:
    plugin = reader.SummaryMetadata(tag).plugin_data.plugin_name
    texts[tag] = [[e.step, e.tensor_proto.string_val[0].decode(errors="replace"), plugin] for e in reader.Tensors(tag)]
print(json.dumps({"curves": curves, "texts": texts}))
