// kfake as a separate broker process, for `python -m benchmarks broker`.
//
// The argument is a JSON object: `topics` maps names to numbers of partitions. The program prints its bootstrap servers as
// JSON; for every line that it reads it prints the CPU seconds it has used; it ends with its standard input.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"strings"
	"syscall"

	"github.com/twmb/franz-go/pkg/kfake"
)

func cpuSeconds() float64 {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		log.Fatal(err)
	}
	return float64(used.Utime.Nano()+used.Stime.Nano()) / 1e9
}

func main() {
	var settings struct {
		Topics map[string]int32 `json:"topics"`
	}
	if err := json.Unmarshal([]byte(os.Args[1]), &settings); err != nil {
		log.Fatal(err)
	}
	options := []kfake.Opt{kfake.NumBrokers(1)}
	for name, partitions := range settings.Topics {
		options = append(options, kfake.SeedTopics(partitions, name))
	}
	cluster, err := kfake.NewCluster(options...)
	if err != nil {
		log.Fatal(err)
	}
	defer cluster.Close()
	out, _ := json.Marshal(map[string]string{"bootstrap_servers": strings.Join(cluster.ListenAddrs(), ",")})
	fmt.Println(string(out))
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		fmt.Printf("{\"cpu_seconds\": %f}\n", cpuSeconds())
	}
}
