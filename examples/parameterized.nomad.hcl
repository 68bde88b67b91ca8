# A parameterized job is a template. It runs nothing until you dispatch it; each dispatch is a job of its own.
#
#   drover job run examples/parameterized.nomad.hcl
#   echo hello | drover job dispatch -meta to=world parameterized -

job "parameterized" {
  type = "batch"

  parameterized {
    payload       = "required"
    meta_required = ["to"]
    meta_optional = ["tone"]
  }

  meta {
    tone = "calm"
  }

  group "say" {
    task "say" {
      driver = "raw_exec"

      config {
        command = "/bin/sh"
        args    = ["-c", "echo $NOMAD_META_tone $(cat $NOMAD_TASK_DIR/in/words) $NOMAD_META_to"]
      }

      dispatch_payload {
        file = "in/words"
      }

      resources {
        cpu    = 20
        memory = 16
      }
    }
  }
}
