# A server. Nodes find it at port 4647, people at http://127.0.0.1:4646. It keeps the join secret, which nodes
# must show, in server/join-secret of its data directory.
data_dir = "/var/lib/drover/server"

server {
  enabled = true
}
