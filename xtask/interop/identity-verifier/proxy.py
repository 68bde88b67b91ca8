"""What an operator puts in front of the servers: https, and the two paths that relying parties need."""

import http.server
import ssl
import sys
import urllib.request

PORT, SERVERS, CERTIFICATE, KEY = int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4]
PATHS = ("/.well-known/openid-configuration", "/.well-known/jwks.json")


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path not in PATHS:
            self.send_error(404)
            return
        with urllib.request.urlopen(SERVERS + self.path) as answer:
            body, kind = answer.read(), answer.headers["Content-Type"]
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


server = http.server.ThreadingHTTPServer(("127.0.0.1", PORT), Handler)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(CERTIFICATE, KEY)
server.socket = context.wrap_socket(server.socket, server_side=True)
server.serve_forever()
