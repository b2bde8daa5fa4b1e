"""The package under another name, with a task that comes with its tests in the place of yours.

A module that is not in this folder is the package's own, loaded a second time as ``small.NAME``; as all its imports are
relative, it finds ``small.task``. So what is tested is the very code of the package, whatever your own task is.
"""

from pathlib import Path

import {{ cookiecutter.package_name }}

__path__ = [str(Path(__file__).parent), *{{ cookiecutter.package_name }}.__path__]
