// A driver of a remote runtime as people wrote them with the stock packages, for the plain protocol: capability RemoteTasks, a handle, a watch of its own for
// each task. Like the published one for ECS it does nothing when it is told of a task that it knows, ends a watch with the first look that fails or that sees
// the end, and notes an end of its own doing only. The runtime is this program as well: `go-remote-driver runtime ADDRESS`. A target of `cargo xtask interop`.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/drivers/shared/eventer"
	"github.com/hashicorp/nomad/plugins"
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/hashicorp/nomad/plugins/shared/hclspec"
	pstructs "github.com/hashicorp/nomad/plugins/shared/structs"
)

// Between two looks at an instance.
const interval = 500 * time.Millisecond

// An instance, as the runtime tells of it.
type instance struct {
	ID     string
	Name   string
	Status string
	// How often it was looked at, and told to stop.
	Looks, Stops int
}

type runtime struct {
	lock      sync.Mutex
	instances []*instance
	faulty    bool
}

// GET /           all instances
// POST /create/NAME  GET /look/ID  POST /stop/ID  POST /end/ID: an instance
// POST /faulty/yes POST /faulty/no: whether looks fail
func (r *runtime) ServeHTTP(out http.ResponseWriter, in *http.Request) {
	r.lock.Lock()
	defer r.lock.Unlock()
	verb, name, _ := strings.Cut(strings.TrimPrefix(in.URL.Path, "/"), "/")
	var found *instance
	for _, one := range r.instances {
		if one.ID == name {
			found = one
		}
	}
	switch {
	case verb == "":
		_ = json.NewEncoder(out).Encode(r.instances)
		return
	case verb == "faulty":
		r.faulty = name == "yes"
		return
	case verb == "create":
		found = &instance{ID: fmt.Sprintf("i%d", len(r.instances)), Name: name, Status: "RUNNING"}
		r.instances = append(r.instances, found)
	case found == nil:
		http.Error(out, "no such instance", http.StatusNotFound)
		return
	case verb == "look":
		found.Looks++
		if r.faulty {
			http.Error(out, "try again", http.StatusServiceUnavailable)
			return
		}
	case verb == "stop":
		found.Stops++
		found.Status = "STOPPED"
	case verb == "end":
		found.Status = "STOPPED"
	}
	_ = json.NewEncoder(out).Encode(found)
}

type settings struct {
	Address string `codec:"address"`
}

type options struct {
	Name string `codec:"name"`
}

// What is found again.
type state struct {
	Instance string
	Task     *drivers.TaskConfig
	Started  time.Time
}

type task struct {
	state
	cancel context.CancelFunc
	over   chan struct{}

	lock      sync.Mutex
	noted     drivers.TaskState
	result    drivers.ExitResult
	completed time.Time
	detach    bool
}

type driver struct {
	*eventer.Eventer
	log     hclog.Logger
	address string

	lock  sync.Mutex
	tasks map[string]*task
}

func (d *driver) ask(method, path string) (*instance, error) {
	request, err := http.NewRequest(method, "http://"+d.address+path, nil)
	if err != nil {
		return nil, err
	}
	client := http.Client{Timeout: 5 * time.Second}
	answer, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the runtime answers %s", answer.Status)
	}
	var found instance
	return &found, json.NewDecoder(answer.Body).Decode(&found)
}

// follow looks at the instance until the end, a failure, or an order.
func (d *driver) follow(ctx context.Context, t *task) {
	defer close(t.over)
	fail := func(err error) {
		t.lock.Lock()
		defer t.lock.Unlock()
		t.result = drivers.ExitResult{ExitCode: 1, Err: err}
		t.completed = time.Now()
	}
	// Waits until somebody reads.
	out, err := os.OpenFile(t.Task.StdoutPath, os.O_WRONLY, 0)
	if err != nil {
		fail(err)
		return
	}
	defer out.Close()
	for ctx.Err() == nil {
		select {
		case <-time.After(interval):
		case <-ctx.Done():
			continue
		}
		seen, err := d.ask(http.MethodGet, "/look/"+t.Instance)
		if err != nil {
			fail(err)
			return
		}
		now := time.Now().Format(time.RFC3339)
		fmt.Fprintf(out, "[%s] - client is remotely monitoring ECS task: %s with status %s\n", now, t.Instance, seen.Status)
		if seen.Status == "STOPPED" {
			fail(nil)
			return
		}
	}
	t.lock.Lock()
	defer t.lock.Unlock()
	if !t.detach {
		if _, err := d.ask(http.MethodPost, "/stop/"+t.Instance); err != nil {
			t.result = drivers.ExitResult{ExitCode: 1, Err: err}
			return
		}
	}
	t.noted, t.completed = drivers.TaskStateExited, time.Now()
}

func (d *driver) get(id string) (*task, error) {
	d.lock.Lock()
	defer d.lock.Unlock()
	if found, ok := d.tasks[id]; ok {
		return found, nil
	}
	return nil, drivers.ErrTaskNotFound
}

func (d *driver) add(kept state) {
	ctx, cancel := context.WithCancel(context.Background())
	t := &task{state: kept, cancel: cancel, over: make(chan struct{}), noted: drivers.TaskStateRunning}
	d.lock.Lock()
	defer d.lock.Unlock()
	d.tasks[kept.Task.ID] = t
	go d.follow(ctx, t)
}

func (d *driver) PluginInfo() (*base.PluginInfoResponse, error) {
	return &base.PluginInfoResponse{
		Type: base.PluginTypeDriver, Name: "go_remote", PluginVersion: "0.1.0", PluginApiVersions: []string{drivers.ApiVersion010},
	}, nil
}

func (d *driver) ConfigSchema() (*hclspec.Spec, error) {
	return hclspec.NewObject(map[string]*hclspec.Spec{"address": hclspec.NewAttr("address", "string", true)}), nil
}

func (d *driver) SetConfig(config *base.Config) error {
	var given settings
	if err := base.MsgPackDecode(config.PluginConfig, &given); err != nil {
		return err
	}
	d.address = given.Address
	return nil
}

func (d *driver) TaskConfigSchema() (*hclspec.Spec, error) {
	return hclspec.NewObject(map[string]*hclspec.Spec{"name": hclspec.NewAttr("name", "string", true)}), nil
}

func (d *driver) Capabilities() (*drivers.Capabilities, error) {
	return &drivers.Capabilities{RemoteTasks: true}, nil
}

func (d *driver) Fingerprint(ctx context.Context) (<-chan *drivers.Fingerprint, error) {
	told := make(chan *drivers.Fingerprint, 1)
	attributes := map[string]*pstructs.Attribute{"driver.go_remote": pstructs.NewBoolAttribute(true)}
	told <- &drivers.Fingerprint{Attributes: attributes, Health: drivers.HealthStateHealthy, HealthDescription: drivers.DriverHealthy}
	go func() {
		<-ctx.Done()
		close(told)
	}()
	return told, nil
}

func (d *driver) StartTask(config *drivers.TaskConfig) (*drivers.TaskHandle, *drivers.DriverNetwork, error) {
	if _, err := d.get(config.ID); err == nil {
		return nil, nil, fmt.Errorf("task %q has been started", config.ID)
	}
	var wanted options
	if err := config.DecodeDriverConfig(&wanted); err != nil {
		return nil, nil, err
	}
	made, err := d.ask(http.MethodPost, "/create/"+wanted.Name)
	if err != nil {
		return nil, nil, fmt.Errorf("create: %w", err)
	}
	kept := state{Instance: made.ID, Task: config, Started: time.Now()}
	handle := drivers.NewTaskHandle(1)
	handle.Config = config
	if err := handle.SetDriverState(&kept); err != nil {
		return nil, nil, err
	}
	d.add(kept)
	return handle, nil, nil
}

func (d *driver) RecoverTask(handle *drivers.TaskHandle) error {
	if handle == nil || handle.Config == nil {
		return errors.New("an empty handle")
	}
	if _, err := d.get(handle.Config.ID); err == nil {
		return nil
	}
	var kept state
	if err := handle.GetDriverState(&kept); err != nil {
		return err
	}
	// Whoever manages it now says where it writes.
	kept.Task = handle.Config
	d.add(kept)
	return nil
}

func (d *driver) WaitTask(ctx context.Context, id string) (<-chan *drivers.ExitResult, error) {
	t, err := d.get(id)
	if err != nil {
		return nil, err
	}
	told := make(chan *drivers.ExitResult, 1)
	go func() {
		defer close(told)
		select {
		case <-t.over:
			t.lock.Lock()
			defer t.lock.Unlock()
			told <- t.result.Copy()
		case <-ctx.Done():
			told <- &drivers.ExitResult{Err: ctx.Err()}
		}
	}()
	return told, nil
}

func (d *driver) StopTask(id string, timeout time.Duration, signal string) error {
	t, err := d.get(id)
	if err != nil {
		return err
	}
	t.lock.Lock()
	t.detach = t.detach || signal == drivers.DetachSignal
	detach := t.detach
	t.lock.Unlock()
	t.cancel()
	select {
	case <-t.over:
		return nil
	case <-time.After(timeout):
		return fmt.Errorf("timed out waiting for ecs task (id=%s) to stop (detach=%t)", id, detach)
	}
}

func (d *driver) DestroyTask(id string, force bool) error {
	t, err := d.get(id)
	if err != nil {
		return err
	}
	t.lock.Lock()
	runs := t.noted == drivers.TaskStateRunning
	t.lock.Unlock()
	if runs && !force {
		return errors.New("cannot destroy running task")
	}
	t.cancel()
	d.lock.Lock()
	defer d.lock.Unlock()
	delete(d.tasks, id)
	return nil
}

func (d *driver) InspectTask(id string) (*drivers.TaskStatus, error) {
	t, err := d.get(id)
	if err != nil {
		return nil, err
	}
	t.lock.Lock()
	defer t.lock.Unlock()
	return &drivers.TaskStatus{
		ID: id, Name: t.Task.Name, State: t.noted, StartedAt: t.Started, CompletedAt: t.completed, ExitResult: t.result.Copy(),
		DriverAttributes: map[string]string{"arn": t.Instance},
	}, nil
}

func (d *driver) TaskStats(ctx context.Context, id string, _ time.Duration) (<-chan *drivers.TaskResourceUsage, error) {
	told := make(chan *drivers.TaskResourceUsage)
	go func() {
		<-ctx.Done()
		close(told)
	}()
	return told, nil
}

func (d *driver) SignalTask(string, string) error { return errors.New("no signals") }

func (d *driver) ExecTask(string, []string, time.Duration) (*drivers.ExecTaskResult, error) {
	return nil, errors.New("no commands beside the task")
}

func main() {
	if len(os.Args) == 3 && os.Args[1] == "runtime" {
		fmt.Fprintln(os.Stderr, http.ListenAndServe(os.Args[2], &runtime{}))
		os.Exit(1)
	}
	plugins.Serve(func(log hclog.Logger) any {
		return &driver{Eventer: eventer.NewEventer(context.Background(), log), log: log.Named("go_remote"), tasks: map[string]*task{}}
	})
}
