// A host made of the Go agent's own plugin client: drives a driver plugin of ours the way a stock agent does.
//
//	go-host <plugin binary> [plugin arguments]
//	go-host -device <directory> <plugin binary> [plugin arguments]
//
// The plugin must be the mock driver; with -device it is the mock device plugin on that directory,
// which has one file. Every check prints a line; the exit code is 0 only if all held.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	plugin "github.com/hashicorp/go-plugin"
	"github.com/hashicorp/nomad/client/lib/numalib"
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/device"
	"github.com/hashicorp/nomad/plugins/drivers"
)

var failed bool

func check(what string, ok bool, detail ...any) {
	verdict := "ok  "
	if !ok {
		verdict, failed = "FAIL", true
	}
	fmt.Println(verdict, what, fmt.Sprint(detail...))
}

func must(what string, err error) {
	if err != nil {
		fmt.Println("FAIL", what, err)
		os.Exit(1)
	}
}

// patience is how long a busy machine may need for what a quiet one does at once.
const patience = 10 * time.Second

// next waits for what a stream says next.
func next[T any](what string, stream <-chan T) T {
	select {
	case said, open := <-stream:
		if !open {
			must(what, errors.New("the stream has ended"))
		}
		return said
	case <-time.After(patience):
		must(what, fmt.Errorf("nothing within %s", patience))
	}
	panic("must has ended the process")
}

type options struct {
	RunFor   string   `codec:"run_for"`
	ExitCode int      `codec:"exit_code"`
	LogLines int      `codec:"log_lines"`
	Events   int      `codec:"events"`
	MemoryMB int      `codec:"memory_mb"`
	Panic    []string `codec:"panic"`
	Error    string   `codec:"start_error"`
}

func launch(log hclog.Logger, command *exec.Cmd) (*plugin.Client, drivers.DriverPlugin) {
	client := plugin.NewClient(&plugin.ClientConfig{
		HandshakeConfig: base.Handshake,
		Plugins: map[string]plugin.Plugin{
			base.PluginTypeBase:   &base.PluginBase{},
			base.PluginTypeDriver: drivers.NewDriverPlugin(nil, log),
		},
		Cmd:              command,
		AllowedProtocols: []plugin.Protocol{plugin.ProtocolGRPC},
		Logger:           log,
	})
	rpc, err := client.Client()
	must("connect", err)
	raw, err := rpc.Dispense(base.PluginTypeDriver)
	must("dispense", err)
	return client, raw.(drivers.DriverPlugin)
}

// devices drives the device plugin: the first look, a change, a reservation, a measurement, the end.
func devices(dir string, command []string) {
	client := plugin.NewClient(&plugin.ClientConfig{
		HandshakeConfig: base.Handshake,
		Plugins: map[string]plugin.Plugin{
			base.PluginTypeBase:   &base.PluginBase{},
			base.PluginTypeDevice: &device.PluginDevice{},
		},
		Cmd:              exec.Command(command[0], command[1:]...),
		AllowedProtocols: []plugin.Protocol{plugin.ProtocolGRPC},
		Logger:           hclog.NewNullLogger(),
	})
	defer client.Kill()
	rpc, err := client.Client()
	must("connect", err)
	raw, err := rpc.Dispense(base.PluginTypeDevice)
	must("dispense", err)
	devices := raw.(device.DevicePlugin)
	info, err := devices.PluginInfo()
	must("PluginInfo", err)
	check("identity", info.Name == "mock_device" && info.Type == base.PluginTypeDevice, *info)
	var config []byte
	must("encode", base.MsgPackEncode(&config, map[string]any{"dir": dir, "fingerprint_period": "100ms"}))
	must("SetConfig", devices.SetConfig(&base.Config{ApiVersion: device.ApiVersion010, PluginConfig: config}))
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	fingerprints, err := devices.Fingerprint(ctx)
	must("Fingerprint", err)
	first := <-fingerprints
	check("first look", first.Error == nil && len(first.Devices) == 1 && first.Devices[0].Devices[0].Healthy, first.Error)
	group := first.Devices[0]
	memory := group.Attributes["memory"]
	check("attributes", memory != nil && memory.Int != nil && *memory.Int == 16 && memory.Unit == "GiB", memory)
	id := group.Devices[0].ID
	file := filepath.Join(dir, group.Vendor, group.Type, group.Name, id)
	must("write", os.WriteFile(file, []byte("broken"), 0o644))
	changed := <-fingerprints
	check("a change", !changed.Devices[0].Devices[0].Healthy && changed.Devices[0].Devices[0].HealthDesc == "broken", changed.Error)
	reserved, err := devices.Reserve([]string{id})
	must("Reserve", err)
	check("a reservation", reserved.Envs["NVIDIA_VISIBLE_DEVICES"] == id && reserved.Mounts[0].HostPath == file && reserved.Mounts[0].ReadOnly, *reserved)
	_, err = devices.Reserve([]string{"nobody"})
	check("an unknown device is refused", err != nil && strings.Contains(err.Error(), "nobody"), err)
	stats, err := devices.Stats(ctx, time.Second)
	must("Stats", err)
	measured := <-stats
	check("a measurement", measured.Error == nil, measured.Error)
}

func main() {
	if len(os.Args) > 3 && os.Args[1] == "-device" {
		devices(os.Args[2], os.Args[3:])
		if failed {
			os.Exit(1)
		}
		return
	}
	var logs bytes.Buffer
	log := hclog.New(&hclog.LoggerOptions{Name: "host", Level: hclog.Trace, Output: &logs})
	command := exec.Command(os.Args[1], os.Args[2:]...)
	client, driver := launch(log, command)

	info, err := driver.PluginInfo()
	must("PluginInfo", err)
	check("identity", info.Name == "mock" && info.Type == base.PluginTypeDriver && info.PluginApiVersions[0] == "v0.1.0", *info)
	schema, err := driver.ConfigSchema()
	must("ConfigSchema", err)
	check("configuration schema", schema.GetObject() != nil)
	var config []byte
	must("encode", base.MsgPackEncode(&config, map[string]any{"fs_isolation": "none"}))
	must("SetConfig without an agent", driver.SetConfig(&base.Config{ApiVersion: "v0.1.0", PluginConfig: config}))
	must("SetConfig", driver.SetConfig(&base.Config{
		ApiVersion: "v0.1.0", PluginConfig: config,
		AgentConfig: &base.AgentConfig{Driver: &base.ClientDriverConfig{ClientMinPort: 14000, ClientMaxPort: 14512, Topology: numalib.Scan(nil)}},
	}))
	taskSchema, err := driver.TaskConfigSchema()
	must("TaskConfigSchema", err)
	check("task schema", taskSchema.GetObject().Attributes["run_for"] != nil)
	capabilities, err := driver.Capabilities()
	must("Capabilities", err)
	check("capabilities", capabilities.Exec && capabilities.SendSignals, *capabilities)

	ctx, cancel := context.WithCancel(context.Background())
	fingerprints, err := driver.Fingerprint(ctx)
	must("Fingerprint", err)
	// Long before its interval.
	first := next("first fingerprint", fingerprints)
	check("first fingerprint at once", first.Health == drivers.HealthStateHealthy && first.Err == nil, *first)
	events, err := driver.TaskEvents(ctx)
	must("TaskEvents", err)

	dir, _ := os.MkdirTemp("", "go-host")
	defer os.RemoveAll(dir)
	number := 0
	task := func(o options) *drivers.TaskConfig {
		number++
		tc := &drivers.TaskConfig{
			ID: fmt.Sprintf("alloc/task/%08d", number), Name: "task", AllocID: "alloc", AllocDir: dir,
			StdoutPath: filepath.Join(dir, "stdout"), StderrPath: filepath.Join(dir, "stderr"),
			Resources: &drivers.Resources{},
		}
		must("encode task", tc.EncodeConcreteDriverConfig(&o))
		return tc
	}

	running := task(options{RunFor: "800ms", ExitCode: 3, LogLines: 50, Events: 1})
	handle, _, err := driver.StartTask(running)
	must("StartTask", err)
	check("handle", handle.Version >= 1 && handle.Config.ID == running.ID)
	event := next("event", events)
	check("event", event.TaskID == running.ID && !event.Timestamp.IsZero() && event.Err == nil, *event)
	wait, err := driver.WaitTask(ctx, running.ID)
	must("WaitTask", err)
	exit := <-wait
	check("exit", exit.ExitCode == 3 && exit.Err == nil, *exit)
	status, err := driver.InspectTask(running.ID)
	must("InspectTask", err)
	check("exited", status.State == drivers.TaskStateExited && !status.CompletedAt.IsZero())
	must("DestroyTask", driver.DestroyTask(running.ID, true))
	wait, err = driver.WaitTask(ctx, running.ID)
	if err == nil {
		err = (<-wait).Err
	}
	check("unknown task", err != nil && strings.Contains(err.Error(), drivers.ErrTaskNotFound.Error()), err)

	_, _, err = driver.StartTask(task(options{Error: "no image"}))
	check("start error", err != nil && strings.Contains(err.Error(), "no image"), err)
	_, _, err = driver.StartTask(task(options{Panic: []string{"start"}}))
	check("a panic is an error of its call", err != nil && strings.Contains(err.Error(), "panicked"), err)
	_, err = driver.PluginInfo()
	check("and the plugin lives", err == nil && !client.Exited())

	long := task(options{RunFor: "1h", MemoryMB: 32})
	handle, _, err = driver.StartTask(long)
	must("StartTask", err)
	status, err = driver.InspectTask(long.ID)
	must("InspectTask", err)
	runs := status.State == drivers.TaskStateRunning && status.CompletedAt.IsZero()
	check("running", runs, status.State, status.CompletedAt)
	measured, enough := context.WithCancel(ctx)
	stats, err := driver.TaskStats(measured, long.ID, 50*time.Millisecond)
	must("TaskStats", err)
	for range 2 {
		usage := next("sample", stats)
		check("sample", usage.ResourceUsage.MemoryStats.RSS == 32<<20 && usage.Timestamp > 0)
	}
	enough()
	result, err := driver.ExecTask(long.ID, []string{"hello", "there"}, time.Second)
	must("ExecTask", err)
	check("exec", string(result.Stdout) == "hello there" && result.ExitResult.ExitCode == 0)
	must("SignalTask", driver.SignalTask(long.ID, "SIGHUP"))

	// The agent dies: no orderly end; the plugin survives it and is found again.
	reattach := client.ReattachConfig()
	again := plugin.NewClient(&plugin.ClientConfig{
		HandshakeConfig: base.Handshake,
		Plugins:         map[string]plugin.Plugin{base.PluginTypeDriver: drivers.NewDriverPlugin(nil, log)},
		Reattach:        reattach, AllowedProtocols: []plugin.Protocol{plugin.ProtocolGRPC}, Logger: log,
	})
	rpc, err := again.Client()
	must("reattach", err)
	raw, err := rpc.Dispense(base.PluginTypeDriver)
	must("dispense again", err)
	must("known task", raw.(drivers.DriverPlugin).RecoverTask(handle))
	check("stop", raw.(drivers.DriverPlugin).StopTask(long.ID, time.Second, "SIGTERM") == nil)
	select {
	case f, open := <-fingerprints:
		check("the fingerprint stream stays open and silent", false, f, open)
	case e, open := <-events:
		check("the event stream stays open and silent", false, e, open)
	default:
		check("both streams stay open and silent", true)
	}
	cancel()

	// An orderly end: the order that Kill gives, without its SIGKILL two seconds later.
	own, err := client.Client()
	must("its client", err)
	must("order to end", own.Close())
	for begun := time.Now(); !client.Exited() && time.Since(begun) < patience; {
		time.Sleep(10 * time.Millisecond)
	}
	_, left := os.Stat(reattach.Addr.String())
	well := client.Exited() && command.ProcessState.ExitCode() == 0 && os.IsNotExist(left)
	check("ends by itself, with its socket", well, left)
	if !client.Exited() {
		client.Kill()
	}

	// A new process takes the task over by its handle; the configuration is not sent again after an agent restart.
	client, driver = launch(log, exec.Command(os.Args[1], os.Args[2:]...))
	must("SetConfig", driver.SetConfig(&base.Config{ApiVersion: "v0.1.0", PluginConfig: config}))
	bare := handle.Copy()
	bare.Config = &drivers.TaskConfig{ID: long.ID, Name: "task", AllocID: "alloc", AllocDir: dir}
	must("RecoverTask", driver.RecoverTask(bare))
	must("StopTask", driver.StopTask(long.ID, time.Second, ""))
	wait, err = driver.WaitTask(context.Background(), long.ID)
	must("WaitTask", err)
	exit = <-wait
	check("recovered task ends", exit.Err == nil, *exit)
	client.Kill()

	text := logs.String()
	check("log lines are understood", strings.Count(text, "a log line that the job asked for") == 50 && strings.Contains(text, "[INFO]"))
	check("no log line is taken for plain text", !strings.Contains(text, "{\"@"), "")
	if failed {
		fmt.Println(text)
		os.Exit(1)
	}
}
