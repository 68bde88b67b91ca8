// Writes golden.json: what Go's text/template with consul-template's functions makes of each line of cases.txt.
// Usage: go run . cases.txt golden.json, in a directory that holds this file and go.mod.template as go.mod, after go mod tidy.
package main

import (
	"encoding/json"
	"log"
	"os"
	"runtime"
	"strings"

	ct "github.com/hashicorp/consul-template/template"
)

type result struct {
	Template string
	Left     string `json:",omitempty"`
	Right    string `json:",omitempty"`
	Strict   bool   `json:",omitempty"`
	Output   *string
}

func render(r *result) (output *string) {
	defer func() {
		if recover() != nil {
			output = nil
		}
	}()
	t, err := ct.NewTemplate(&ct.NewTemplateInput{
		Contents: r.Template, LeftDelim: r.Left, RightDelim: r.Right, ErrMissingKey: r.Strict,
	})
	if err != nil {
		return nil
	}
	out, err := t.Execute(&ct.ExecuteInput{
		Brain: ct.NewBrain(),
		Env:   []string{"GREETING=hello", "EMPTY="},
	})
	if err != nil {
		return nil
	}
	text := string(out.Output)
	return &text
}

func main() {
	input, err := os.ReadFile(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	var results []result
	for _, line := range strings.Split(strings.TrimRight(string(input), "\n"), "\n") {
		if strings.HasPrefix(line, "# ") {
			continue
		}
		r := result{}
		if rest, found := strings.CutPrefix(line, "strict "); found {
			r.Strict, line = true, rest
		}
		if rest, found := strings.CutPrefix(line, "delims "); found {
			parts := strings.SplitN(rest, " ", 3)
			r.Left, r.Right, line = parts[0], parts[1], parts[2]
		}
		r.Template = strings.ReplaceAll(line, "⏎", "\n")
		r.Output = render(&r)
		results = append(results, r)
	}
	file, err := os.Create(os.Args[2])
	if err != nil {
		log.Fatal(err)
	}
	encoder := json.NewEncoder(file)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", " ")
	if err := encoder.Encode(map[string]any{"Go": runtime.Version(), "Cases": results}); err != nil {
		log.Fatal(err)
	}
	if err := file.Close(); err != nil {
		log.Fatal(err)
	}
}
