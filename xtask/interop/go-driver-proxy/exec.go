// Package exec has the names that the stock tests of exec use, over a plugin.
package exec

import (
	"context"
	"maps"
	osexec "os/exec"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/ci"
	"github.com/hashicorp/nomad/drivers/shared/droverproxy"
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/drivers"
)

const pluginName = "exec"

var taskConfigSpec = droverproxy.Schema(pluginName)

// The tests lay all of /lib into each task's root, which takes minutes where compilers live in it. Only what their programs load is laid there.
func init() {
	delete(ci.TinyChroot, "/lib")
	loaded := regexp.MustCompile(`(/\S+) \(0x`)
	for program := range maps.Clone(ci.TinyChroot) {
		if !strings.HasPrefix(program, "/usr/bin/") {
			continue
		}
		text, err := osexec.Command("ldd", program).Output()
		if err != nil {
			panic("ldd " + program + ": " + err.Error())
		}
		for _, match := range loaded.FindAllStringSubmatch(string(text), -1) {
			// Links cannot be laid there.
			file, err := filepath.EvalSymlinks(match[1])
			if err != nil {
				panic(err)
			}
			ci.TinyChroot[file] = filepath.Join("/lib", filepath.Base(filepath.Dir(file)), filepath.Base(match[1]))
		}
	}
}

// Config is what the tests configure the plugin with.
type Config struct {
	NoPivotRoot    bool     `codec:"no_pivot_root"`
	DefaultModePID string   `codec:"default_pid_mode"`
	DefaultModeIPC string   `codec:"default_ipc_mode"`
	AllowCaps      []string `codec:"allow_caps"`
	DeniedHostUids string   `codec:"denied_host_uids"`
	DeniedHostGids string   `codec:"denied_host_gids"`
}

// validate is what the plugin says about this configuration.
func (c *Config) validate() error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var data []byte
	if err := base.MsgPackEncode(&data, c); err != nil {
		return err
	}
	return droverproxy.Plain(NewExecDriver(ctx, hclog.NewNullLogger()).SetConfig(&base.Config{PluginConfig: data}))
}

// TaskConfig is the options of a task.
type TaskConfig struct {
	Command string   `codec:"command"`
	Args    []string `codec:"args"`
	ModePID string   `codec:"pid_mode"`
	ModeIPC string   `codec:"ipc_mode"`
	CapAdd  []string `codec:"cap_add"`
	CapDrop []string `codec:"cap_drop"`
	WorkDir string   `codec:"work_dir"`
}

// validate is what the plugin, which allows every capability, says about a task with these options.
func (c *TaskConfig) validate() error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	d := NewExecDriver(ctx, hclog.NewNullLogger()).(*Driver)
	config := &Config{DefaultModePID: "private", DefaultModeIPC: "private", AllowCaps: []string{"all"}}
	d.Preset = func() *base.Config { return encode(config, nil) }
	options := *c
	options.Command, options.Args = "/bin/sleep", []string{"0"}
	return d.Attempt(&options, "")
}

// TaskState is what the tests read of a handle: the process that stock drivers keep there.
type TaskState struct{ Pid int }

// Driver is the plugin, with the fields that the tests set.
type Driver struct {
	*droverproxy.Plugin
	nomadConfig *base.ClientDriverConfig
	tasks       *droverproxy.Tasks
	// The tests' own always agrees, as the plugin does without denied ids.
	userIDValidator interface{ HasValidIDs(string) error }
}

// NewExecDriver is a driver whose plugin is not launched yet.
func NewExecDriver(ctx context.Context, logger hclog.Logger) drivers.DriverPlugin {
	d := &Driver{Plugin: droverproxy.New(ctx, pluginName, logger)}
	d.tasks = &droverproxy.Tasks{Plugin: d.Plugin}
	// What a host sends that has no plugin block: the plugin's own defaults.
	d.Preset = func() *base.Config { return encode(map[string]any{}, d.nomadConfig) }
	return d
}

func encode(config any, agent *base.ClientDriverConfig) *base.Config {
	var data []byte
	if err := base.MsgPackEncode(&data, config); err != nil {
		panic(err)
	}
	return &base.Config{PluginConfig: data, AgentConfig: &base.AgentConfig{Driver: agent}}
}
