// Judges a recorded history of jobs with Porcupine: is there an order of the operations, each between its call and its
// return, in which a single job would have answered as the server did?
//
// Usage: go-linearizable HISTORY PICTURE. HISTORY holds one JSON object on a line for each operation. PICTURE is
// written, as a page to look at, when there is no such order.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"time"

	"github.com/anishathalye/porcupine"
)

// What a client asked, and what it heard.
type operation struct {
	Client int
	Key    string
	// read, write, cas, stop or purge
	Kind string
	// Of a cas: the index that the job has to have; 0 = there is none.
	Expected uint64
	// Of a write or cas: a value that no other operation writes.
	Value string
	Call  int64
	// 0 = nobody knows whether and when it took effect.
	Return int64
	Answer answer
}

type answer struct {
	// An answer came. Otherwise it may have happened, now or later, or not at all.
	Known bool
	// The server has refused it because of its index.
	Refused bool
	// There was a job.
	Found bool
	Index uint64
	Value string
	Stopped bool
}

// A job as it should be. An index of 0 is not known: nobody heard the answer to what has set it.
type job struct {
	Exists  bool
	Index   uint64
	Value   string
	Stopped bool
	// No index of this key may be as low, ever again.
	Above uint64
}

func (j job) changed(to job, index uint64) []interface{} {
	if index != 0 && index <= j.Above {
		return nil
	}
	to.Index, to.Above = index, max(j.Above, index)
	return []interface{}{to}
}

func (j job) has(index uint64) bool {
	return j.Exists && (j.Index == index || j.Index == 0)
}

func read(j job, a answer) []interface{} {
	if !a.Found {
		if j.Exists {
			return nil
		}
		return []interface{}{j}
	}
	same := j.has(a.Index) && j.Value == a.Value && j.Stopped == a.Stopped
	if !same || (j.Index == 0 && a.Index <= j.Above) {
		return nil
	}
	j.Index, j.Above = a.Index, max(j.Above, a.Index)
	return []interface{}{j}
}

func cas(j job, o operation, a answer) []interface{} {
	fits := !j.Exists
	sure := true
	if o.Expected != 0 {
		fits, sure = j.has(o.Expected), !j.Exists || j.Index != 0
	}
	next := job{Exists: true, Value: o.Value}
	switch {
	case !a.Known && fits && !sure:
		return append(j.changed(next, 0), j)
	case !a.Known && fits:
		return j.changed(next, 0)
	case !a.Known:
		return []interface{}{j}
	case a.Refused && fits && sure:
		return nil
	case a.Refused:
		return []interface{}{j}
	case fits:
		return j.changed(next, a.Index)
	}
	return nil
}

func step(state, input, output interface{}) []interface{} {
	j, o, a := state.(job), input.(operation), output.(answer)
	switch o.Kind {
	case "read":
		return read(j, a)
	case "write":
		return j.changed(job{Exists: true, Value: o.Value}, a.Index)
	case "cas":
		return cas(j, o, a)
	case "stop":
		if !j.Exists || (a.Known && !a.Found) {
			if a.Known && a.Found != j.Exists {
				return nil
			}
			return []interface{}{j}
		}
		if j.Stopped {
			// It stays as it is.
			if a.Known {
				return read(j, answer{Found: true, Index: a.Index, Value: j.Value, Stopped: true})
			}
			return []interface{}{j}
		}
		return j.changed(job{Exists: true, Value: j.Value, Stopped: true}, a.Index)
	case "purge":
		if a.Known && a.Found != j.Exists {
			return nil
		}
		return []interface{}{job{Above: j.Above}}
	}
	panic("unknown kind " + o.Kind)
}

var model = porcupine.NondeterministicModel{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		places, all := map[string]int{}, [][]porcupine.Operation{}
		for _, o := range history {
			key := o.Input.(operation).Key
			at, known := places[key]
			if !known {
				at, places[key] = len(all), len(all)
				all = append(all, nil)
			}
			all[at] = append(all[at], o)
		}
		return all
	},
	Init:  func() []interface{} { return []interface{}{job{}} },
	Step:  step,
	Equal: func(a, b interface{}) bool { return a == b },
	DescribeOperation: func(input, output interface{}) string {
		o, a := input.(operation), output.(answer)
		return fmt.Sprintf("%s %s (index %d, value %q) -> %+v", o.Kind, o.Key, o.Expected, o.Value, a)
	},
	DescribeState: func(state interface{}) string { return fmt.Sprintf("%+v", state) },
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
}

func main() {
	file, err := os.Open(os.Args[1])
	fail(err)
	var history []porcupine.Operation
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		var o operation
		fail(json.Unmarshal(lines.Bytes(), &o))
		end := o.Return
		if end == 0 {
			end = math.MaxInt64
		}
		history = append(history, porcupine.Operation{ClientId: o.Client, Input: o, Call: o.Call, Output: o.Answer, Return: end})
	}
	fail(lines.Err())
	result, info := porcupine.CheckOperationsVerbose(model.ToModel(), history, 5*time.Minute)
	fmt.Printf("%s: %d operations\n", result, len(history))
	if result != porcupine.Ok {
		fail(porcupine.VisualizePath(model.ToModel(), info, os.Args[2]))
		os.Exit(1)
	}
}
