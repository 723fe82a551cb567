"""A search service of several workers: lbclient serve searching:make_server --workers 2

compose.yaml starts it in a container, kubernetes.yaml with four workers in each pod.
"""

import sys
from pathlib import Path

import lbclient

sys.path.insert(0, str(Path(__file__).parents[1]))

import search_pb2_grpc
from search_pb2 import Answer


class Search(search_pb2_grpc.SearchServicer):
    async def Search(self, request, context):
        return Answer(text=f"found {request.text}")


def make_server():
    """Called once in each worker; it needs to know nothing of the others."""
    server = lbclient.server()
    search_pb2_grpc.add_SearchServicer_to_server(Search(), server)
    return server
