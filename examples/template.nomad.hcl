# Files rendered before the task starts: a configuration file, environment variables, and other delimiters for
# a text full of braces.
#
#   drover job run examples/template.nomad.hcl

job "template" {
  type = "batch"

  group "site" {
    task "show" {
      driver = "raw_exec"

      config {
        command = "/bin/sh"
        args    = ["-c", "cat local/site.conf local/style.css; echo \"colour $COLOUR\""]
      }

      env {
        SERVERS = "one:8001,two:8002"
      }

      template {
        destination = "local/site.conf"
        change_mode = "noop"
        data        = <<-EOT
          # {{ env "NOMAD_JOB_NAME" }} of {{ env "NOMAD_TASK_NAME" }}
          {{- range $i, $server := split "," (env "SERVERS") }}
          {{- $part := split ":" $server }}
          server {{ index $part 0 | toUpper }} port {{ index $part 1 }}{{ if eq $i 0 }} primary{{ end }}
          {{- end }}
        EOT
      }

      template {
        destination     = "local/style.css"
        change_mode     = "noop"
        left_delimiter  = "[["
        right_delimiter = "]]"
        data            = "body { width: [[ multiply 3 320 ]]px }\n"
      }

      template {
        destination = "secrets/task.env"
        env         = true
        data        = "COLOUR={{ sprig_default \"green\" (env \"COLOUR_WISHED\") | toJSON }}\n"
      }

      resources {
        cpu    = 50
        memory = 16
      }
    }
  }
}
