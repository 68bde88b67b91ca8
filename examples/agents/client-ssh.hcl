# A node that manages remote tasks on hosts over ssh. The hosts need only an ssh server.
data_dir = "/var/lib/drover/client-ssh"

ports {
  http = 4666
}

client {
  enabled = true
  servers = ["127.0.0.1:4647"]
}

# The file server/join-secret of the server's data directory. Copy it to nodes on other machines.
drover {
  join_secret_file = "/var/lib/drover/server/server/join-secret"
}

plugin "remote_exec" {
  config {
    transport   = "ssh"
    pool        = "machines"
    known_hosts = "/etc/drover/known_hosts"

    host "m1" {
      address       = "192.0.2.11"
      user          = "drover"
      identity_file = "/etc/drover/id_ed25519"

      labels = {
        zone = "east"
      }

      capacity {
        cpu    = 8000
        memory = 16384
      }
    }

    # Reached through m1, as ssh's own configuration says.
    host "m2" {
      jump = "drover@192.0.2.11"

      labels = {
        zone = "west"
      }

      capacity {
        cpu    = 4000
        memory = 8192
      }
    }
  }
}
