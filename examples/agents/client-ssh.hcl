# A node that manages remote tasks on hosts that it reaches over ssh. The hosts need an ssh server and nothing else.
data_dir = "/var/lib/drover/client-ssh"

ports {
  http = 4666
}

client {
  enabled = true
  servers = ["127.0.0.1:4647"]
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

    # Reached through m1, with whatever ssh's own configuration says about it.
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
