package stelae.spark;

import java.io.Serializable;
import org.apache.spark.TaskContext;
import org.apache.spark.api.java.JavaRDD;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.catalyst.plans.logical.CollectMetrics;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.execution.arrow.ArrowConverters.ArrowBatchWithSchemaIterator;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import scala.collection.Iterator;
import scala.reflect.ClassTag;
import scala.reflect.ClassTag$;
import scala.runtime.AbstractFunction1;

/**
 * The rows of a part of a frame as batches of Arrow, each a stream with its schema, by the writer that Spark has for its
 * own clients. How large a batch is goes by the bytes of the rows; on the way to functions of Python, Spark adds up the
 * buffers of all columns after each row instead.
 *
 * Compiled when it is needed by the compiler that Spark brings, which knows no generics and no lambdas.
 */
public final class ArrowParts extends AbstractFunction1 implements Serializable {
    private final StructType schema;
    private final long records;
    private final long bytes;

    ArrowParts(StructType schema, long records, long bytes) {
        this.schema = schema;
        this.records = records;
        this.bytes = bytes;
    }

    public Object apply(Object rows) {
        return batches((Iterator) rows, this.schema, this.records, this.bytes, TaskContext.get());
    }

    private static Iterator batches(Iterator rows, StructType schema, long records, long bytes, TaskContext task) {
        return new ArrowBatchWithSchemaIterator(rows, schema, records, bytes, "UTC", false, false, task);
    }

    /** What is called from Python. */
    public static final class Frames {
        /** Fails where Spark's writer is another: the class is looked for when it is first used. */
        public void check() {
            StructType schema = new StructType(new StructField[0]);
            Iterator none = scala.collection.immutable.Nil$.MODULE$.iterator();
            batches(none, schema, 1L, 1L, null).hasNext();
        }

        /**
         * @param records that a batch has at most
         * @param bytes after which a batch is ended, counted as Spark's rows are stored
         * @return nothing if somebody observes the frame: metrics are told of queries, and this is none
         */
        public JavaRDD of(Dataset frame, long records, long bytes) {
            if (isObserved(frame.queryExecution().analyzed())) {
                return null;
            }
            RDD rows = frame.queryExecution().toRdd();
            ClassTag tag = ClassTag$.MODULE$.apply(byte[].class);
            return rows.mapPartitions(new ArrowParts(frame.schema(), records, bytes), false, tag).toJavaRDD();
        }

        private static boolean isObserved(LogicalPlan plan) {
            if (plan instanceof CollectMetrics) {
                return true;
            }
            Iterator children = plan.children().iterator();
            while (children.hasNext()) {
                if (isObserved((LogicalPlan) children.next())) {
                    return true;
                }
            }
            return false;
        }
    }
}
