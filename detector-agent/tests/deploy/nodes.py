"""An API server with four nodes, as much of one as `kubectl taint` needs: prints its port, then the patches that it gets.

Usage: nodes.py NODES (JSON objects by name)
"""

import http.server
import json
import sys

NODES = json.load(open(sys.argv[1]))
ANSWERS = {
    "/api": {"kind": "APIVersions", "versions": ["v1"]},
    "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": []},
    "/api/v1": {
        "kind": "APIResourceList",
        "groupVersion": "v1",
        "resources": [{"name": "nodes", "singularName": "node", "kind": "Node", "namespaced": False, "verbs": ["list", "patch"]}],
    },
    "/api/v1/nodes": {"kind": "NodeList", "apiVersion": "v1", "metadata": {}, "items": list(NODES.values())},
    **{f"/api/v1/nodes/{name}": node for name, node in NODES.items()},
}


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        answer = json.dumps(ANSWERS[self.path.split("?")[0]]).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def do_PATCH(self):
        patch = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        print(json.dumps([self.path, patch]), flush=True)
        self.do_GET()

    def log_message(self, *_):
        pass


server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
