"""Names on the wire: metadata keys, and paths of methods for health and load."""

LOAD_KEY = "lbclient-load-bin"
ATTEMPT_KEY = "lbclient-attempt"  # of a retry: 1, 2, ...; a first attempt has none
STOCK_ATTEMPT_KEY = "grpc-previous-rpc-attempts"  # likewise, of gRPC's own (gRFC A6)
CRITICALITY_KEY = "lbclient-criticality"
CUSTOMER_KEY = "lbclient-customer"
# The `task_id` of the server that may decline this first attempt. Other servers, which
# get it if the metadata is passed on, do not decline.
DECLINE_KEY = "lbclient-may-decline"
REFUSAL_KEY = "lbclient-refusal"  # a value of `refusal.Refusal`
PUSHBACK_KEY = "grpc-retry-pushback-ms"  # gRFC A6
ORCA_KEY = "endpoint-load-metrics-bin"  # hidden from Python clients by grpcio
COST_KEY = "lbclient-cost"  # CPU seconds of this request, as decimal text

WATCH_METHOD = "/lbclient.v1.BackendHealth/Watch"
CHECK_METHOD = "/lbclient.v1.BackendHealth/Check"
SERVING_WATCH_METHOD = "/grpc.health.v1.Health/Watch"
SERVING_CHECK_METHOD = "/grpc.health.v1.Health/Check"
ORCA_METHOD = "/xds.service.orca.v3.OpenRcaService/StreamCoreMetrics"
