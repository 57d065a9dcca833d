"""Some of the SDK's own samples in every run, where they have been downloaded: the quick ones.

All of them are `make sdk-samples`.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.interop import certificates, samples
from tests.interop.sample_plan import PLANS


def test_quick_samples() -> None:
    """Each ends with 0, complains about nothing, and has done what it is there to show."""
    pytest.importorskip("azure.servicebus")
    if not samples.is_at_hand():
        pytest.skip("the samples are not there yet: `make sdk-samples` downloads them")
    quick = {f"sync_samples/{name}.py" for name, plan in PLANS.items() if plan.is_quick}
    try:
        with samples.surroundings() as around, ThreadPoolExecutor(len(quick)) as pool:
            wanted = [one for one in samples.read_samples(around.folder) if one.name in quick]
            verdicts = list(pool.map(lambda one: samples.run(one, around), wanted))
    except (samples.CannotRun, certificates.NoOpenSsl) as reason:
        pytest.skip(str(reason))
    assert len(verdicts) == len(quick)
    failed = [f"{v.sample.name}: {v.reason}\n{v.output}" for v in verdicts if v.word != "ok"]
    assert not failed, "\n".join(failed)
