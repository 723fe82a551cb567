"""The calls that a channel returns, of gRPC's four arities, and their attempts.

| question | file |
|---|---|
| the hot path: one attempt, and no wrapper | `direct` |
| how a call waits for a backend, or for a pause | `waiting` |
| how a wrapped call is sent, sent again, and ends | `sending` |
| what callers ask of a wrapped call | `wrapped`, `streams` |
| two attempts at once | `hedged` |
| whether, when and where the next attempt goes | `attempts` |
| what a failed attempt says of its backend | `attempt_outcome` |
| what errors tell of earlier attempts | `history` |
"""
