// Nomad's own raw_exec driver, served as an external plugin binary: the interop target of `cargo xtask interop`.
package main

import (
	"context"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/drivers/rawexec"
	"github.com/hashicorp/nomad/plugins"
)

func main() {
	plugins.Serve(func(log hclog.Logger) interface{} {
		return rawexec.NewRawExecDriver(context.Background(), log)
	})
}
