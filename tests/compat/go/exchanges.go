// What takes two sides: transactions, about which brokers ask, and requests with their replies.
package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

func newProducer(group string) (rocketmq.Producer, error) {
	p, err := rocketmq.NewProducer(
		producer.WithNameServer([]string{nameServer}), producer.WithGroupName(group), producer.WithInstanceName(instance()), producer.WithRetry(0),
		producer.WithCredentials(credentials()),
	)
	if err != nil {
		return nil, err
	}
	return p, p.Start()
}

// The first letter of a body is the local transaction's state, the second the answer to checks: c commit, r roll back, u unknown.
type ledger struct {
	mutex sync.Mutex
	left  map[string]bool
}

func state(letter byte) primitive.LocalTransactionState {
	switch letter {
	case 'c':
		return primitive.CommitMessageState
	case 'r':
		return primitive.RollbackMessageState
	}
	return primitive.UnknowState
}

func (l *ledger) ExecuteLocalTransaction(message *primitive.Message) primitive.LocalTransactionState {
	return state(message.Body[0])
}

func (l *ledger) CheckLocalTransaction(message *primitive.MessageExt) primitive.LocalTransactionState {
	body := string(message.Body)
	say("VALUE", "CHECKED", body, message.GetProperty("TRANSACTION_CHECK_TIMES"), message.Topic)
	l.mutex.Lock()
	defer l.mutex.Unlock()
	delete(l.left, body)
	return state(body[1])
}

func (l *ledger) open() int {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return len(l.left)
}

// bodies, checked: with commas in between. Lasts until the checked ones were checked.
func transact(topic, group, bodies, checked string) error {
	l := &ledger{left: map[string]bool{}}
	for _, body := range strings.Split(checked, ",") {
		l.left[body] = true
	}
	p, err := rocketmq.NewTransactionProducer(l,
		producer.WithNameServer([]string{nameServer}), producer.WithGroupName(group), producer.WithInstanceName(instance()), producer.WithRetry(0),
		producer.WithCredentials(credentials()))
	if err != nil {
		return err
	}
	if err = p.Start(); err != nil {
		return err
	}
	defer p.Shutdown()
	for _, body := range strings.Split(bodies, ",") {
		result, err := p.SendMessageInTransaction(context.Background(), primitive.NewMessage(topic, []byte(body)).WithKeys([]string{body}))
		if err != nil {
			return err
		}
		say("VALUE", "SENT", body, int(result.Status), int(result.State))
	}
	for end := time.Now().Add(50 * time.Second); l.open() > 0; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			return fmt.Errorf("not asked about %d transactions", l.open())
		}
	}
	time.Sleep(300 * time.Millisecond) // the answers are sent one-way
	return nil
}

var requester rocketmq.Producer

func request(topic, body string, seconds int) (err error) {
	// One for all requests: the brokers know it from its first heartbeat on, a second after its start.
	if requester == nil {
		if requester, err = newProducer("peer-requests"); err != nil {
			return err
		}
	}
	reply, err := requester.Request(context.Background(), time.Duration(seconds)*time.Second, primitive.NewMessage(topic, []byte(body)))
	if err != nil {
		return err
	}
	say("VALUE", string(reply.Body), reply.Topic)
	return nil
}

// A push consumer that replies "go: BODY"; says GOT when the broker has acknowledged the reply.
func replier(name, topic, group string) error {
	p, err := newProducer("peer-replies")
	if err != nil {
		return err
	}
	c, err := rocketmq.NewPushConsumer(
		consumer.WithNameServer([]string{nameServer}), consumer.WithGroupName(group), consumer.WithInstance(instance()),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset), consumer.WithCredentials(credentials()),
	)
	if err != nil {
		return err
	}
	selector := consumer.MessageSelector{Type: consumer.TAG, Expression: "*"}
	err = c.Subscribe(topic, selector, func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		for _, message := range messages {
			reply, err := consumer.CreateReplyMessage(message, nil)
			if err != nil {
				return consumer.ConsumeRetryLater, err
			}
			reply.Body = append([]byte("go: "), message.Body...) // CreateReplyMessage takes a body for properties
			result, err := p.SendSync(context.Background(), reply)
			if err == nil && result.Status != primitive.SendOK {
				err = errors.New(result.String())
			}
			if err != nil {
				return consumer.ConsumeRetryLater, err
			}
			say(append([]any{"GOT", name}, fields(message, len(messages))...)...)
		}
		return consumer.ConsumeSuccess, nil
	})
	if err != nil {
		return err
	}
	consumers[name] = c
	return c.Start()
}
