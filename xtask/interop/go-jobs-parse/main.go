// The reference parser, without an agent: reads the job files that are named on standard input, one in each line, and writes one JSON
// document in each line: what POST /v1/jobs/parse answers for the file, without and with "Canonicalize", or why it cannot be read.
package main

import (
	"bufio"
	"encoding/json"
	"os"

	"github.com/hashicorp/nomad/api"
	"github.com/hashicorp/nomad/jobspec2"
)

type result struct {
	File      string   `json:"file"`
	Plain     *api.Job `json:"plain"`
	Canonical *api.Job `json:"canonical"`
	Error     string   `json:"error"`
}

// parse reads as the endpoint does: lenient about variables, without access to files.
func parse(text []byte) (*api.Job, error) {
	return jobspec2.ParseWithConfig(&jobspec2.ParseConfig{Path: "input.hcl", Body: text, AllowFS: false})
}

func main() {
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	encoder := json.NewEncoder(out)
	files := bufio.NewScanner(os.Stdin)
	for files.Scan() {
		one := result{File: files.Text()}
		text, err := os.ReadFile(one.File)
		if err == nil {
			one.Plain, err = parse(text)
		}
		if err == nil {
			// A second time: canonicalising changes what it is given.
			if one.Canonical, err = parse(text); err == nil {
				one.Canonical.Canonicalize()
			}
		}
		if err != nil {
			one = result{File: one.File, Error: err.Error()}
		}
		if err := encoder.Encode(one); err != nil {
			panic(err)
		}
	}
}
