# SPDX-License-Identifier: Apache-2.0
import os
import sys

import pytest

# XLA reads it when JAX starts, and makes four devices of this CPU.
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"


@pytest.fixture(autouse=True)
def same_numbers():
    """Each test of PyTorch draws the same numbers, alone and after others."""
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(1)
