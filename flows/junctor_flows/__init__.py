"""Prefect flows over the plain functions of junctor."""

import os

from junctor.runtime.installed import require_extra

require_extra("flow", "junctor_flows")

# For the server that Prefect starts by itself where none is configured: it is slow at its first start, and its
# telemetry trips over its own database where there is no network. Set before Prefect is imported; never over the
# user's own.
_DEFAULTS = {
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "180",
}
for _name, _value in _DEFAULTS.items():
    os.environ.setdefault(_name, _value)
