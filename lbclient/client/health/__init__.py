"""How a channel learns of a backend's state and load without sending it calls.

| question | file |
|---|---|
| How is one backend watched over one connection? Start here | `watch` |
| ... over several connections, and how often does it report? | `paced_watch` |
| ... without a connection? | `unconnected`, `udp` |
| How does a server of lbclient's tell its state? | `own_stream` |
| ... another server, by streams? | `standard_streams` |
| ... another server, or one whose streams block calls, by checks? | `repeated_checks` |
| What did the backend tell over this connection? | `connection_health` |
| How is one stream read, and when is it broken or refused? | `streams` |
| How does one unary check go, and what does its answer say? | `check` |
| When is a check due that nobody ordered? | `check_turns` |
| Do streams block calls? | `stream_checks` |
| How do the CHECK and the LOOK go that the lifecycle orders? | `ordered_checks` |
| When may a server be asked again that ends requests unseen? | `health_backoff` |
| Which services does a backend refuse? | `refused_services` |
| What does a status say that ends a check or a stream? | `statuses` |
"""
