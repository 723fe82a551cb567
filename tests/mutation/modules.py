"""The modules that decide, and the tests that hold each."""

# Files in lbclient/, and in tests/.
TESTS = {
    "core/retries/retry.py": "unit/test_retry laws/test_retry unit/test_attempts"
    " unit/test_stock_budget loop/test_balancer",
    "core/retries/hedging.py": "unit/test_hedging loop/test_balancer",
    "core/retries/ending.py": "unit/test_ending",
    "core/throttles/throttle.py": "unit/test_throttle laws/test_throttle"
    " unit/test_throttling unit/test_sparse_throttle laws/test_fallen_demand",
    "core/throttles/sparse_throttle.py": "unit/test_sparse_throttle"
    " laws/test_sparse_throttle",
    "core/throttles/throttling.py": "unit/test_throttling",
    "core/backends/lifecycle.py": "unit/test_lifecycle unit/test_lifecycle_table"
    " laws/test_lifecycle loop/test_balancer loop/test_health_watch",
    "core/backends/connection_state.py": "unit/test_lifecycle laws/test_lifecycle"
    " loop/test_balancer loop/test_health_watch",
    "core/backends/doubts.py": "unit/test_lifecycle unit/test_lifecycle_table"
    " laws/test_lifecycle loop/test_balancer loop/test_health_watch",
    "core/backends/looks.py": "unit/test_looks unit/test_lifecycle laws/test_lifecycle"
    " loop/test_balancer loop/test_health_watch",
    "core/backends/checks.py": "unit/test_looks unit/test_lifecycle laws/test_lifecycle"
    " loop/test_health_watch loop/test_balancer",
    "core/backends/silence.py": "unit/test_silence unit/test_lifecycle"
    " laws/test_lifecycle loop/test_health_watch loop/test_balancer",
    "core/backends/pool.py": "unit/test_pool unit/test_worker_choice"
    " unit/test_task_workers laws/test_pool laws/test_crowding loop/test_balancer"
    " unit/test_crowd",
    "core/backends/task_workers.py": "unit/test_task_workers unit/test_worker_choice"
    " loop/test_worker_endpoints loop/test_balancer",
    "core/outliers/outliers.py": "unit/test_outliers laws/test_outliers"
    " unit/test_method_latencies",
    "core/outliers/answer_record.py": "unit/test_outliers laws/test_outliers"
    " unit/test_method_latencies",
    "core/overload/admission.py": "unit/test_admission laws/test_admission"
    " unit/test_gate unit/test_overload_signals",
    "core/overload/overload_signals.py": "unit/test_overload_signals unit/test_gate"
    " unit/test_contention",
    "core/criticality.py": "unit/test_criticality laws/test_criticality"
    " unit/test_admission",
    "core/quotas/quota.py": "unit/test_quota laws/test_quota"
    " laws/test_invented_customers loop/test_quotas",
    "core/quotas/quota_account.py": "unit/test_quota_account unit/test_quota"
    " unit/test_costs laws/test_quota loop/test_quotas",
    "client/pending.py": "unit/test_pending loop/test_balancer",
    "server/overload/gate.py": "unit/test_gate",
    "server/overload/run_queue.py": "loop/test_run_queue",
    "subsets/ring.py": "unit/test_subsets_ring unit/test_subsets"
    " unit/test_subsets_golden",
    "subsets/numbered.py": "unit/test_numbered laws/test_numbered"
    " unit/test_worker_choice",
    "subsets/rendezvous.py": "unit/test_rendezvous unit/test_subsets_golden",
    "subsets/rocksteadier.py": "unit/test_subsets unit/test_subsets_golden",
}  # fmt: skip
