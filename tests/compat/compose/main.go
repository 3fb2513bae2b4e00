// Loads a compose file as Compose v2 does, with all profiles, and prints each service with its command: `compose FILE...`.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"

	"github.com/compose-spec/compose-go/v2/cli"
)

func main() {
	options, err := cli.NewProjectOptions(os.Args[1:], cli.WithName("triomq"), cli.WithProfiles([]string{"*"}))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	project, err := options.LoadProject(context.Background())
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	commands := map[string][]string{}
	for name, service := range project.Services {
		commands[name] = service.Command
	}
	json.NewEncoder(os.Stdout).Encode(commands)
}
