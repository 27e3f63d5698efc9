// Reads objects in YAML, and ends with status 1 if the operators' own types refuse a field or a value.
// Kubernetes' schemas do not have these kinds.
package main

import (
	"fmt"
	"io"
	"os"
	"strings"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	gateway "sigs.k8s.io/gateway-api/apis/v1"
	gatewayalpha "sigs.k8s.io/gateway-api/apis/v1alpha2"
	"sigs.k8s.io/yaml"
)

func main() {
	text, err := io.ReadAll(os.Stdin)
	if err != nil {
		panic(err)
	}
	read := 0
	for _, document := range strings.Split("\n"+string(text), "\n---\n") {
		var head struct {
			APIVersion string `json:"apiVersion"`
			Kind       string `json:"kind"`
		}
		if err := yaml.Unmarshal([]byte(document), &head); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		var object any
		switch head.APIVersion + " " + head.Kind {
		case "monitoring.coreos.com/v1 ServiceMonitor":
			object = &monitoring.ServiceMonitor{}
		case "monitoring.coreos.com/v1 PrometheusRule":
			object = &monitoring.PrometheusRule{}
		case "gateway.networking.k8s.io/v1 HTTPRoute":
			object = &gateway.HTTPRoute{}
		case "gateway.networking.k8s.io/v1alpha2 TLSRoute":
			object = &gatewayalpha.TLSRoute{}
		default:
			continue
		}
		if err := yaml.UnmarshalStrict([]byte(document), object); err != nil {
			fmt.Println(head.Kind, err)
			os.Exit(1)
		}
		read++
	}
	fmt.Println(read)
}
