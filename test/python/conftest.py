# SPDX-License-Identifier: Apache-2.0
import sys

import pytest


@pytest.fixture(autouse=True)
def same_numbers():
    """Each test of PyTorch draws the same numbers, alone and after others."""
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(1)
