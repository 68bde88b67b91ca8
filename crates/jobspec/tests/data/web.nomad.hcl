# A service behind health checks, rolled out two at a time.
job "web" {
  region      = "eu"
  datacenters = ["dc1", "dc2"]
  type        = "service"
  priority    = 70
  node_pool   = "apps"

  meta {
    owner = "team-web"
    cost  = 12
  }

  constraint {
    attribute = "${attr.kernel.name}"
    value     = "linux"
  }

  update {
    max_parallel      = 2
    health_check      = "checks"
    min_healthy_time  = "15s"
    healthy_deadline  = "5m"
    progress_deadline = "10m"
    auto_revert       = true
    stagger           = "1m30s"
  }

  group "frontend" {
    count = 3

    network {
      mode = "bridge"
      port "http" {
        to = 8080
      }
      port "admin" {
        static       = 9901
        host_network = "private"
      }
      dns {
        servers = ["1.1.1.1", "8.8.8.8"]
      }
    }

    service {
      name     = "web-${NOMAD_GROUP_NAME}"
      provider = "nomad"
      port     = "http"
      tags     = ["v1", "public"]

      check {
        type     = "http"
        path     = "/health"
        interval = "10s"
        timeout  = "2s"
        header {
          Accept = ["application/json", "text/plain"]
        }
        check_restart {
          limit = 3
          grace = "90s"
        }
      }
      check {
        name     = "alive"
        type     = "tcp"
        interval = "15s"
        timeout  = "1s"
      }
    }

    restart {
      attempts = 5
      interval = "10m"
      delay    = "20s"
      mode     = "delay"
    }

    task "server" {
      driver = "docker"
      user   = "nobody"

      config {
        image = "example/web:${NOMAD_META_version}"
        ports = ["http", "admin"]
        args  = ["-listen", ":${NOMAD_PORT_http}", "-node", "${node.unique.name}"]
        mount {
          type   = "bind"
          source = "local/conf"
          target = "/etc/web"
          bind_options {
            propagation = "rshared"
          }
        }
        mount {
          type   = "tmpfs"
          target = "/tmp"
        }
        labels = {
          app = "web"
        }
        logging {
          type = "journald"
          config {
            tag = "web"
          }
        }
      }

      env {
        LISTEN  = "${NOMAD_ADDR_http}"
        WORKERS = 4
        DEBUG   = false
        HOME_   = "${env["HOME"]}"
      }

      template {
        destination = "local/conf/web.yaml"
        change_mode = "signal"
        change_signal = "SIGHUP"
        data        = <<-EOT
          listen: {{ env "NOMAD_ADDR_http" }}
          upstreams:
          {{ range nomadService "api" }}
            - {{ .Address }}:{{ .Port }}
          {{ end }}
        EOT
      }

      artifact {
        source      = "https://example.com/assets.tar.gz"
        destination = "local/assets"
        options {
          checksum = "sha256:0123456789abcdef"
        }
        headers {
          X-Token = "$${secret}"
        }
      }

      resources {
        cpu        = 500
        memory     = 256
        memory_max = 512
      }

      logs {
        max_files     = 3
        max_file_size = 5
      }

      kill_timeout   = "20s"
      kill_signal    = "SIGTERM"
      shutdown_delay = "5s"
    }
  }
}
