"""Imported before open_mythos.main: the package without its __init__, which wants its tokenizer's requirements."""
import os
import sys
import types

folder = next(os.path.join(p, "open_mythos") for p in sys.path if os.path.isdir(os.path.join(p, "open_mythos")))
package = types.ModuleType("open_mythos")
package.__path__ = [folder]
sys.modules["open_mythos"] = package
