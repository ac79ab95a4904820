package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/IBM/sarama"
	"github.com/twmb/franz-go/pkg/kgo"
)

// report prints `assigned P P …`, all partitions of the member, whenever they change, and `record P OFFSET` for each record.
type report struct {
	sync.Mutex
	held []int32
}

func (r *report) change(partition int32, by int) {
	r.Lock()
	defer r.Unlock()
	if by > 0 {
		r.held = append(r.held, partition)
	} else {
		r.held = slices.DeleteFunc(r.held, func(each int32) bool { return each == partition })
	}
	slices.Sort(r.held)
	fmt.Println(strings.TrimSpace("assigned " + strings.Trim(fmt.Sprint(r.held), "[]")))
}

func (r *report) record(partition int32, offset int64) {
	r.Lock()
	defer r.Unlock()
	fmt.Println("record", partition, offset)
}

// incrementalMember is a member of a group with the cooperative or consumer protocol until the standard input ends.
func incrementalMember(servers []string, protocol, client, topic, group string) {
	ctx, leave := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		leave()
	}()
	if client == "sarama" {
		cooperativeSarama(ctx, servers, topic, group)
	} else {
		incrementalFranz(ctx, servers, protocol, topic, group)
	}
}

func incrementalFranz(ctx context.Context, servers []string, protocol, topic, group string) {
	report := &report{}
	change := func(by int) func(context.Context, *kgo.Client, map[string][]int32) {
		return func(_ context.Context, _ *kgo.Client, partitions map[string][]int32) {
			for _, partition := range partitions[topic] {
				report.change(partition, by)
			}
		}
	}
	options := []kgo.Opt{
		kgo.SeedBrokers(servers...), kgo.ConsumerGroup(group), kgo.ConsumeTopics(topic), kgo.ClientID("franz-go"),
		kgo.Balancers(kgo.CooperativeStickyBalancer()), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.HeartbeatInterval(200 * time.Millisecond), kgo.FetchMaxWait(100 * time.Millisecond),
		kgo.OnPartitionsAssigned(change(1)), kgo.OnPartitionsLost(change(-1)),
		kgo.OnPartitionsRevoked(func(ctx context.Context, client *kgo.Client, partitions map[string][]int32) {
			fail(client.CommitUncommittedOffsets(ctx))
			change(-1)(ctx, client, partitions)
		}),
	}
	if protocol == "consumer" {
		options = append(options, kgo.ServerSideBalancer())
	}
	client, err := kgo.NewClient(options...)
	fail(err)
	for ctx.Err() == nil {
		client.PollFetches(ctx).EachRecord(func(record *kgo.Record) { report.record(record.Partition, record.Offset) })
	}
	fail(client.CommitUncommittedOffsets(context.Background()))
	client.Close()
}

type cooperativeHandler struct{ report *report }

func (h *cooperativeHandler) Setup(sarama.ConsumerGroupSession) error { return nil }

func (h *cooperativeHandler) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (h *cooperativeHandler) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	h.report.change(claim.Partition(), 1)
	defer h.report.change(claim.Partition(), -1)
	for message := range claim.Messages() {
		h.report.record(message.Partition, message.Offset)
		session.MarkMessage(message, "")
	}
	return nil
}

func cooperativeSarama(ctx context.Context, servers []string, topic, name string) {
	config := (&saramaClient{servers}).config()
	config.ClientID = "sarama"
	config.Consumer.Group.Rebalance.GroupStrategies = []sarama.BalanceStrategy{sarama.NewBalanceStrategyCooperativeSticky()}
	group, err := sarama.NewConsumerGroup(servers, name, config)
	fail(err)
	handler := &cooperativeHandler{&report{}}
	for ctx.Err() == nil {
		if err := group.Consume(ctx, []string{topic}, handler); err != nil && ctx.Err() == nil {
			fail(err)
		}
	}
	fail(group.Close())
}
