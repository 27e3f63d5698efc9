// Reads a Compose file by Compose's own library, as `docker compose config` does, and prints it as JSON.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"

	"github.com/compose-spec/compose-go/v2/cli"
)

func main() {
	options, err := cli.NewProjectOptions(os.Args[1:], cli.WithOsEnv, cli.WithInterpolation(true), cli.WithProfiles([]string{"*"}))
	if err == nil {
		project, loaded := options.LoadProject(context.Background())
		if err = loaded; err == nil {
			err = json.NewEncoder(os.Stdout).Encode(project)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
