"""Write the exports that `test_llama_factory.py` and `test_ms_swift.py` open: ``write_exports.py FOLDER``.

This runs in our own environment, they run in those of the other trainers.
"""

import json
import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.experiments.looks.looks_files import write_looks

from selfverify.experiments.visual_sets import export_looks
from selfverify.policy.loading import BUILTIN

folder = Path(sys.argv[1])
shutil.rmtree(folder, ignore_errors=True)
folder.mkdir(parents=True)
looks = write_looks(folder / "looks")
for target in ("llama-factory", "ms-swift"):
    export_looks(looks, folder / target, target)
# The built-in model's processor, with the patches of Qwen's own models: ms-swift resizes images to these.
shutil.copytree(BUILTIN / "digits", folder / "model")
for name in ("config.json", "preprocessor_config.json"):
    path = folder / "model" / name
    path.write_text(path.read_text().replace('"patch_size": 8', '"patch_size": 14'))
wanted = {}
for line in (looks / "sft.jsonl").read_text().splitlines():
    row = json.loads(line)
    wanted[row["id"]] = [m["content"] for m in row["messages"] if m["role"] == "assistant"]
(folder / "wanted.json").write_text(json.dumps(wanted))
