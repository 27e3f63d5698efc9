// Command alerts evaluates Prometheus's alert rules over scraped metrics.
//
// Its argument is a rules file, which it checks as Prometheus does. Each line on stdin is a scrape of
// all targets: {"at": seconds, "targets": {"instance": "text, or empty if it is down"}}. The response
// to each line is one line on stdout: {"alert": [labels of each series]} of the alerts that are active.
// The time for which an alert must be active (for) is ignored.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/model/textparse"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb"
)

const job = "pqkeep"

type scrape struct {
	At      float64           `json:"at"`
	Targets map[string]string `json:"targets"`
}

func main() {
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(file string) error {
	silent := slog.New(slog.NewTextHandler(io.Discard, nil))
	parsed := parser.NewParser(parser.Options{})
	groups, errs := rulefmt.ParseFile(file, false, model.UTF8Validation, parsed, silent)
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	folder, err := os.MkdirTemp("", "alerts")
	if err != nil {
		return err
	}
	defer os.RemoveAll(folder)
	db, err := tsdb.Open(folder, silent, nil, tsdb.DefaultOptions(), nil)
	if err != nil {
		return err
	}
	defer db.Close()
	engine := promql.NewEngine(promql.EngineOpts{
		Logger: silent, MaxSamples: 50_000_000, Timeout: time.Minute, Parser: parsed,
	})
	present := map[uint64]labels.Labels{}
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		var read scrape
		if err := json.Unmarshal(lines.Bytes(), &read); err != nil {
			return err
		}
		at := int64(read.At * 1000)
		if present, err = store(db, at, read.Targets, present); err != nil {
			return err
		}
		active, err := evaluate(db, engine, groups, time.UnixMilli(at))
		if err != nil {
			return err
		}
		if err := json.NewEncoder(os.Stdout).Encode(active); err != nil {
			return err
		}
	}
	return lines.Err()
}

// store appends a scrape, and returns its series. Like Prometheus, it marks series of the scrape before
// that are not in this one as stale, so that they end at once.
func store(
	db *tsdb.DB, at int64, targets map[string]string, before map[uint64]labels.Labels,
) (map[uint64]labels.Labels, error) {
	app, present := db.Appender(context.Background()), map[uint64]labels.Labels{}
	for instance, text := range targets {
		up := 0.0
		if text != "" {
			up = 1
			read := textparse.NewPromParser([]byte(text), labels.NewSymbolTable(), false)
			for {
				entry, err := read.Next()
				if errors.Is(err, io.EOF) {
					break
				}
				if err != nil {
					return nil, err
				}
				if entry != textparse.EntrySeries {
					continue
				}
				_, _, number := read.Series()
				var found labels.Labels
				read.Labels(&found)
				if err := add(app, present, named(found, instance), at, number); err != nil {
					return nil, err
				}
			}
		}
		of := named(labels.FromStrings(labels.MetricName, "up"), instance)
		if err := add(app, present, of, at, up); err != nil {
			return nil, err
		}
	}
	for hash, series := range before {
		if _, is := present[hash]; !is {
			_, err := app.Append(0, series, at, math.Float64frombits(value.StaleNaN))
			if err != nil && !errors.Is(err, storage.ErrOutOfOrderSample) { // an hour ago, for a new target
				return nil, err
			}
		}
	}
	return present, app.Commit()
}

func named(series labels.Labels, instance string) labels.Labels {
	builder := labels.NewBuilder(series)
	builder.Set("job", job)
	builder.Set("instance", instance)
	return builder.Labels()
}

func add(
	app storage.Appender, present map[uint64]labels.Labels, series labels.Labels, at int64, number float64,
) error {
	present[series.Hash()] = series
	_, err := app.Append(0, series, at, number)
	return err
}

func evaluate(
	db *tsdb.DB, engine *promql.Engine, groups *rulefmt.RuleGroups, at time.Time,
) (map[string][]map[string]string, error) {
	active := map[string][]map[string]string{}
	for _, group := range groups.Groups {
		for _, rule := range group.Rules {
			query, err := engine.NewInstantQuery(context.Background(), db, nil, rule.Expr, at)
			if err != nil {
				return nil, err
			}
			result := query.Exec(context.Background())
			found, err := result.Vector()
			if err != nil {
				return nil, fmt.Errorf("%s: %w", rule.Alert, err)
			}
			for _, sample := range found {
				active[rule.Alert] = append(active[rule.Alert], sample.Metric.Map())
			}
			query.Close()
		}
	}
	return active, nil
}
