"""Python imports this at its start if its folder is on PYTHONPATH: a front trusts a new kubelet's List after a second.

In the product it waits for minutes, because a kubelet lists its pods late; the simulated one does not.
"""

import devherd.tenancy

_guards = devherd.tenancy.Guards

devherd.tenancy.Guards = lambda: _guards(settle=1.0)  # type: ignore[assignment,misc]
