// A relying party made of go-oidc: it knows an issuer, and judges tokens.
//
// Each line of standard input is {"Token", "Audience"}. Each line of the answer is {"Claims"} or {"Refused": "why"}.
// Discovery is done once. The library caches the key set, and asks again for a key that it does not know.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"

	"github.com/coreos/go-oidc/v3/oidc"
)

type question struct{ Token, Audience string }

type answer struct {
	Claims  map[string]any `json:",omitempty"`
	Refused string         `json:",omitempty"`
}

func judge(ctx context.Context, provider *oidc.Provider, asked question) answer {
	config := &oidc.Config{ClientID: asked.Audience, SupportedSigningAlgs: []string{oidc.RS256, oidc.EdDSA}}
	token, err := provider.Verifier(config).Verify(ctx, asked.Token)
	if err != nil {
		return answer{Refused: err.Error()}
	}
	var claims map[string]any
	if err := token.Claims(&claims); err != nil {
		return answer{Refused: err.Error()}
	}
	return answer{Claims: claims}
}

func main() {
	ctx := context.Background()
	provider, err := oidc.NewProvider(ctx, os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	lines, out := bufio.NewScanner(os.Stdin), json.NewEncoder(os.Stdout)
	for lines.Scan() {
		var asked question
		if err := json.Unmarshal(lines.Bytes(), &asked); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		if err := out.Encode(judge(ctx, provider, asked)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}
