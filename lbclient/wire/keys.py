"""Names on the wire: metadata keys, and paths of methods for health and load."""

LOAD_KEY = "lbclient-load-bin"
ATTEMPT_KEY = "lbclient-attempt"  # of a retry: 1, 2, ...; none: it is the first
STOCK_ATTEMPT_KEY = "grpc-previous-rpc-attempts"  # likewise, of gRPC's own (gRFC A6)
CRITICALITY_KEY = "lbclient-criticality"
CUSTOMER_KEY = "lbclient-customer"
# That a first attempt may be declined, and the `task_id` of the server that may: what
# passes a request's metadata on must not have other servers decline it.
DECLINE_KEY = "lbclient-may-decline"
REFUSAL_KEY = "lbclient-refusal"  # a word of `refusal.Refusal`
PUSHBACK_KEY = "grpc-retry-pushback-ms"  # gRFC A6
ORCA_KEY = "endpoint-load-metrics-bin"  # hidden from Python clients by grpcio
COST_KEY = "lbclient-cost"  # CPU seconds of this request, as decimal text

WATCH_METHOD = "/lbclient.v1.BackendHealth/Watch"
CHECK_METHOD = "/lbclient.v1.BackendHealth/Check"
SERVING_WATCH_METHOD = "/grpc.health.v1.Health/Watch"
SERVING_CHECK_METHOD = "/grpc.health.v1.Health/Check"
ORCA_METHOD = "/xds.service.orca.v3.OpenRcaService/StreamCoreMetrics"
