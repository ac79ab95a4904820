// Runs a case of `benchmarks.pulsar` with pulsar-client-go, and prints the figures as JSON: NAME=VALUE …, the fields of `Settings`
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/log"
)

const (
	differentKeys = 5000
	warmUp        = 50
)

type figures struct {
	Counted    int      `json:"counted"`
	Seconds    float64  `json:"seconds"`
	CPUSeconds float64  `json:"cpu_seconds"`
	P50        *float64 `json:"p50"`
	P99        *float64 `json:"p99"`
	Memory     *int     `json:"memory"`
}

var (
	settings   = map[string]string{}
	started    time.Time
	startedCPU time.Duration
)

func main() {
	for _, argument := range os.Args[1:] {
		name, value, _ := strings.Cut(argument, "=")
		settings[name] = value
	}
	client, err := pulsar.NewClient(pulsar.ClientOptions{
		URL:    settings["service_url"],
		Logger: log.NewLoggerWithSlog(slog.New(slog.NewTextHandler(io.Discard, nil))),
	})
	check(err)
	defer client.Close()
	value := make([]byte, number("size"))
	var found figures
	switch settings["case"] {
	case "receive":
		found = receive(client, number("messages"))
	case "latency":
		found = call(client, value, number("calls"))
	default:
		found = produce(client, value, number("messages"), settings["case"] == "produce-keys")
	}
	check(json.NewEncoder(os.Stdout).Encode(found))
}

func produce(client pulsar.Client, value []byte, messages int, withKeys bool) figures {
	names := make([]string, differentKeys)
	for index := range names {
		names[index] = fmt.Sprintf("key-%d", index)
	}
	producer, err := client.CreateProducer(pulsar.ProducerOptions{Topic: settings["topic"]})
	check(err)
	defer producer.Close()
	ctx := context.Background()
	_, err = producer.Send(ctx, &pulsar.ProducerMessage{Payload: value})
	check(err)
	var failed atomic.Int64
	begin()
	for index := range messages {
		message := &pulsar.ProducerMessage{Payload: value}
		if withKeys {
			message.Key = names[index*7919%differentKeys]
		}
		producer.SendAsync(ctx, message, func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) {
			if err != nil {
				failed.Add(1)
			}
		})
	}
	check(producer.Flush())
	found := end(messages, nil)
	if failed.Load() > 0 {
		check(fmt.Errorf("%d messages have failed", failed.Load()))
	}
	return found
}

func receive(client pulsar.Client, messages int) figures {
	consumer, err := client.Subscribe(pulsar.ConsumerOptions{
		Topic:                       settings["topic"],
		SubscriptionName:            settings["subscription"],
		Type:                        pulsar.Shared,
		SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest,
	})
	check(err)
	defer consumer.Close()
	ctx := context.Background()
	first, err := consumer.Receive(ctx)
	check(err)
	begin()
	check(consumer.Ack(first))
	size := 0
	for range messages - 1 {
		message, err := consumer.Receive(ctx)
		check(err)
		size += len(message.Payload())
		check(consumer.Ack(message))
	}
	return end(messages-1, nil)
}

func call(client pulsar.Client, value []byte, calls int) figures {
	producer, err := client.CreateProducer(pulsar.ProducerOptions{Topic: settings["topic"]})
	check(err)
	defer producer.Close()
	ctx := context.Background()
	send := func() {
		_, err := producer.Send(ctx, &pulsar.ProducerMessage{Payload: value})
		check(err)
	}
	for range warmUp {
		send()
	}
	delays := make([]float64, calls)
	begin()
	for index := range delays {
		before := time.Now()
		send()
		delays[index] = time.Since(before).Seconds()
	}
	return end(calls, delays)
}

func number(name string) int {
	value, err := strconv.Atoi(settings[name])
	check(err)
	return value
}

func cpu() time.Duration {
	var usage syscall.Rusage
	check(syscall.Getrusage(syscall.RUSAGE_SELF, &usage))
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

func begin() {
	started, startedCPU = time.Now(), cpu()
}

func end(counted int, delays []float64) figures {
	found := figures{
		Counted:    counted,
		Seconds:    time.Since(started).Seconds(),
		CPUSeconds: (cpu() - startedCPU).Seconds(),
	}
	if len(delays) > 0 {
		slices.Sort(delays)
		found.P50 = &delays[len(delays)/2]
		found.P99 = &delays[min(len(delays)-1, len(delays)*99/100)]
	}
	return found
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
