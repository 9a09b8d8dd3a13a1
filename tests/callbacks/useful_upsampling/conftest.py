import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="session")
def project() -> ModuleType:
    """The outside project, which is also a program."""
    path = Path(__file__).with_name("program.py")
    spec = importlib.util.spec_from_file_location("useful_upsampling_program", path)
    if spec is None or spec.loader is None:
        raise ImportError(path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
