// Writes golden.json: the moments that the cron library of Nomad finds for each line of cases.txt.
// Usage: go run . cases.txt golden.json, in a directory that holds this file and go.mod.template as go.mod, after
// go mod tidy.
package main

import (
	"encoding/json"
	"log"
	"os"
	"strings"
	"time"
	_ "time/tzdata"

	"github.com/hashicorp/cronexpr"
)

// Moments of each case.
const count = 6

type result struct {
	Zone  string
	After string
	Cron  string
	// Null: it is no expression.
	Moments []string
}

// As Nomad does it: an expression at which the library panics is none.
func moments(r *result) (found []string) {
	defer func() {
		if recover() != nil {
			found = nil
		}
	}()
	zone, err := time.LoadLocation(r.Zone)
	if err != nil {
		log.Fatal(err)
	}
	at, err := time.Parse(time.RFC3339, r.After)
	if err != nil {
		log.Fatal(err)
	}
	expression, err := cronexpr.Parse(r.Cron)
	if err != nil {
		return nil
	}
	found = []string{}
	for range count {
		at = expression.Next(at.In(zone))
		if at.IsZero() {
			break
		}
		found = append(found, at.UTC().Format(time.RFC3339))
	}
	return found
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
		words := strings.SplitN(line, " ", 3)
		r := result{Zone: words[0], After: words[1], Cron: words[2]}
		r.Moments = moments(&r)
		results = append(results, r)
	}
	output, err := json.MarshalIndent(map[string]any{"Cases": results}, "", " ")
	if err != nil {
		log.Fatal(err)
	}
	if err := os.WriteFile(os.Args[2], append(output, '\n'), 0o644); err != nil {
		log.Fatal(err)
	}
}
